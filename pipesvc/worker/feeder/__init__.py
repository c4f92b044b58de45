"""The process that runs the user's data source and sends each micro-batch straight to the stages that read it."""
