"""What is measured, beside whom, and what came out: each module named in the README is one command."""
