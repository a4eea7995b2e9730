"""How far do collectors and replay servers scale? A measured grid, a simulator fitted to it, and what it says."""
