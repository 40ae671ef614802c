//go:build !linux

package tcp

import "testing"

func TestProcessesElsewhere(t *testing.T) { expectBadConfig(t, &Server{Processes: 2}, "Linux") }
