"""Bases from GGUF files: header, tokenizer, architecture and weights of a file, and the folder of
safetensors that is made of it once."""
