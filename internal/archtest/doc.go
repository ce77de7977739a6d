// Package archtest holds the tests that keep the house in order: which room may import which, which
// rooms stay pure, one doc comment per package, no file that nobody can read in one sitting. Each
// rule has its reason beside it. The package has tests only.
package archtest
