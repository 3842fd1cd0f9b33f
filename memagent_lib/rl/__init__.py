"""Reinforcement learning of readers with verl: multi-conversation GRPO on GPUs, and on a bare CPU by a platform plug-in.

Knows verl, vLLM and Ray; nothing above it may. Importing this package loads none of them.
"""
