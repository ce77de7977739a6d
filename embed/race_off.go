//go:build !race

package embed

const raceBuild = false
