"""Training and averaging on NVIDIA cards in Triton kernels; its doors are `strategies/fused.py` and `aggregation.py`.

`fusion.py` merges layers, files called `*_layer.py` execute each with the SGD step in its backward pass, `graphs.py`
captures all steps as a CUDA graph, and `*_kernels.py` and `mixing.py` hold the kernels. Files that import Triton are
imported only where it is installed. Every other file of `learning` can be read without this folder.
"""
