"""Texts and Python values into columns of declared types, without losing or changing one."""
