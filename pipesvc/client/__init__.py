"""What runs in the user's process: describing a job, sending it, watching it. It reaches neither torch nor grpc
until it must."""
