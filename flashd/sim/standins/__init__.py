"""Programs that stand, inside a simulated machine, for what a rented one brings: its first process, docker, nvidia-smi.

Standard library and sh only: they run under the machine's own `python3`, where flashd does not exist.
"""
