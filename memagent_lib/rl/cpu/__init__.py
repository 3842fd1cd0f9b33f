"""What verl and vLLM need on a bare CPU, and nothing that a GPU uses: platform, engine and weight transfer."""
