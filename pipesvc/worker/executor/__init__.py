"""The process that holds stages and computes: everything here runs on its one thread."""
