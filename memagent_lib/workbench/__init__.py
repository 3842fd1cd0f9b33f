"""What a person looks at in JupyterLab: plots, the inspector, the training panel, sweeps of notebooks."""
