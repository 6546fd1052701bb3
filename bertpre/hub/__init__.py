"""The Hugging Face Hub: what a run gives away, one commit for it, and pushing while a model trains."""
