"""Training and averaging on NVIDIA cards in Triton kernels; its doors are `strategies/fused.py` and `aggregation.py`.

`fusion.py` merges layers, `layers.py` executes each with the SGD step in its backward pass, `graphs.py` captures all
steps as a CUDA graph, and `kernels.py` and `mixing.py` hold the kernels. Files that import Triton are imported only
where it is installed. Every other file of `learning` can be read without this folder.
"""
