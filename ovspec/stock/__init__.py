"""What only OpenVINO's own operations need."""
