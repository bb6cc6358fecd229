"""The bench behind the default: methods × problems × optimizers × noise, with a half held out."""
