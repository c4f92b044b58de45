"""Pencil and paper: what is decided from values alone, with no clock, no I/O, no torch and no grpc, belongs here."""
