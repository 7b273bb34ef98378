"""What OpenVINO and the machine offer: devices, properties, memory."""
