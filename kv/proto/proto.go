// Package proto is the semantic history pool's index (RCL-2): it finds, for tokens of a user's history, prototypes
// whose keys and values can replace theirs.
//
// A token's keys and values depend on the token, and on what stands before it. So a token is known by itself and
// by the embedding of its context: decayed sums of rows of the tokens before it, over a few tokens, over some and
// over all, and its place. Prototypes of other tokens never match; among those of the same one, the nearest
// context wins.
//
// The rows of the projection are learned from the model: they are the linear images of tokens' embeddings whose sums
// predict best, over a sample of histories, how keys and values differ between occurrences of the same token. So the
// distance of two contexts is the predictable part of a relative error of keys and values. The rest is known for each
// token by its mean. Both together are a match's drift, 0 to 1.
//
// Contexts are linear in the tokens' embeddings, and so are their projections on random hyperplanes: both are running
// sums over a history. Signs of projections, relative to the mean of the token's contexts, are the keys of several
// hash tables. They also make a sketch that sorts the candidates of the tables; the best are compared exactly.
//
// A Builder makes prototypes of histories: each occurrence joins the cluster of a context within a radius, or
// begins one; the most frequent clusters stay, and the occurrence nearest to a cluster's centre represents it.
// Tokens that a filter names (identifiers, numbers, delimiters) get none. An index may be added to: prototypes
// keep their numbers and contexts, and what they cover makes no new ones.
//
// The package touches nothing but the file of Open and Write. The same histories, in the same order, and the same
// seed give the same index, on every processor. An Index is safe for concurrent use.
package proto

import "fmt"

// The sizes of an index. A change makes another format.
const (
	Width     = 256 // of contexts' embeddings; wider embeddings of tokens are folded
	Scales    = 3   // sums that make a context
	Tables    = 4
	TableBits = 16 // at most, of a table's keys
	Planes    = Tables * TableBits
	// Page is how many prototypes' KV lies together.
	Page = 64
)

// Config says how contexts are embedded and clustered. Zero means the default.
type Config struct {
	Seed uint64
	// Left is what is left of the sums one token later. DefaultLeft.
	Left [Scales]float32
	// Radius is the distance within which occurrences make a cluster: a relative error, 0 to 1. DefaultRadius.
	Radius float32
	// Least is the number of histories that a cluster occurs in to be kept. 2.
	Least int
	// Most is the number of prototypes, a multiple of Page. 65536.
	Most int
	// Lessons is the number of tokens that contexts are taught with. 16384.
	Lessons int
}

// DefaultRadius was chosen, as DefaultLeft was, by the error of matched keys and values on users who were not in the
// pool, which `grebe-bench prototypes` measures.
const DefaultRadius = 0.1

// DefaultLeft has sums over the last words, over some sentences, and over nearly all.
var DefaultLeft = [Scales]float32{0.6, 0.98, 0.9995}

func (c Config) withDefaults() Config {
	if c.Left == ([Scales]float32{}) {
		c.Left = DefaultLeft
	}
	if c.Radius == 0 {
		c.Radius = DefaultRadius
	}
	if c.Least == 0 {
		c.Least = 2
	}
	if c.Most == 0 {
		c.Most = 1 << 16
	}
	if c.Lessons == 0 {
		c.Lessons = 1 << 14
	}
	return c
}

// Validate reports the first value that makes no sense.
func (c *Config) Validate() error {
	if c.Most < Page || c.Most > maxPrototypes || c.Most%Page != 0 {
		return fmt.Errorf("proto: %d prototypes, want a multiple of %d up to %d", c.Most, Page, maxPrototypes)
	}
	if c.Least < 1 || c.Lessons < 1 {
		return fmt.Errorf("proto: clusters of %d histories, %d lessons", c.Least, c.Lessons)
	}
	for _, l := range c.Left {
		if !(l >= 0 && l < 1) { // NaN too
			return fmt.Errorf("proto: %v of a sum is left, want 0 to 1", l)
		}
	}
	if !(c.Radius >= 0 && c.Radius <= 1) {
		return fmt.Errorf("proto: a radius of %v, want 0 to 1", c.Radius)
	}
	return nil
}

// maxPrototypes keeps entries of all tables countable in 32 bits.
const maxPrototypes = 1 << 28

// Prototype says which token of which history stands for its like.
type Prototype struct {
	Token  int32
	Place  int32  // in its history
	Source uint64 // of the history: a digest of the user's id
	Count  uint32 // histories that it was seen in when it was chosen
}
