//go:build !linux

package testkit

import "math"

// descriptorLimit returns no limit: it is unknown here.
func descriptorLimit() int { return math.MaxInt32 }
