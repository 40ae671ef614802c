//go:build !linux

package testkit

import "math"

func descriptorLimit() int { return math.MaxInt32 }
