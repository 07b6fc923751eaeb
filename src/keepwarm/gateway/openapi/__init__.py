"""The OpenAPI document of the public routes: what may be sent, what comes back, and who may ask.

Written by hand; a test compares its routes with those of the app, and another sends what it
allows. Bodies may always hold more fields than are named here: unknown ones are ignored.
"""
