"""Models of Hugging Face transformers on shared weights."""
