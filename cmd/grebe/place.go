package main

import "grebe/eval/place"

// placeCmd compares ways to place items on nodes.
type placeCmd = place.Maps
