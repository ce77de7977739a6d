// Package deploy has no code: it holds what is needed to run Grebe elsewhere, and the tests that keep it true.
package deploy
