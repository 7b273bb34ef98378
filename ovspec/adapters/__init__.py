"""LoRA adapters: their files, what a call asks for, and what a model's layers add for it."""
