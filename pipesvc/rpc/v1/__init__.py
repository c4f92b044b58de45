"""Messages and stubs generated from protos/; nothing is written here by hand."""
