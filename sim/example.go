package sim

import _ "embed"

// Example is a scenario file that has and explains all keys.
//
//go:embed example.yaml
var Example string
