"""Everything that runs device by device: fleet, agents, networks that change."""
