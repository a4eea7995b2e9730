"""Policies as SavedModels: exported, checked, loaded, converted to products;
which version answers.
"""
