"""Moves messages between processes over gRPC; a module belongs here if it needs grpc and knows nothing of training."""
