"""The only package that imports SGLang and torch: the plugin, its hooks and the worker doors."""
