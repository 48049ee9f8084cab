"""The API: what people write, what the controller answers, and the definitions that the API server checks by."""
