package grebev1

import _ "embed"

// Source is grebe.proto: its comments describe the API.
//
//go:embed grebe.proto
var Source string
