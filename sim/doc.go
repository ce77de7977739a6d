// Package sim runs a fleet of nodes in virtual time, on the code that serves: packages residency, evict, schedule,
// alloc, route and placement decide here as they do in a server. Only compute and networks are replaced, by the times
// that they take.
//
// A run is a function of its scenario and its seed: the same give the same bytes. It has one event heap and no
// goroutine.
package sim
