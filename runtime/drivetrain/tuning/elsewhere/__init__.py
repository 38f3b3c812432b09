"""What a job takes on machines that are not at hand: counted work, and the rates of known machines."""
