"""What a machine can give and a net asks for: ceilings, arithmetic and traffic, and what time is spent on."""
