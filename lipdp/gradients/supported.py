def supported(model):
    pass
