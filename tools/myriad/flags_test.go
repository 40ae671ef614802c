package main

import (
	"strings"
	"testing"
)

// unknownFlags are command lines with flags that are none, and what is said to each.
const unknownFlags = `
serve --max-con 1                           = unknown flag: --max-con; did you mean --max-conns?
load --connection 5 127.0.0.1:1             = unknown flag: --connection; did you mean --connections?
load --conections=5 127.0.0.1:1             = unknown flag: --conections; did you mean --connections?
load --latency 127.0.0.1:1                  = unknown flag: --latency; did you mean --latency-marker?
load -d 2s http://127.0.0.1:1               = unknown shorthand flag: 'd' in -d; what -d is in wrk is -T, --duration here: measure for this TIME
load -duration 2s 127.0.0.1:1               = unknown shorthand flag: 'd' in -duration; did you mean --duration?
load -t 1 http://127.0.0.1:1                = what -t is in wrk is -w, --loops here: run N loops
load -n 100 http://127.0.0.1:1              = what -n is in hey and ab is --messages here: exchange N messages on each connection
load -z 2s http://127.0.0.1:1               = what -z is in hey is -T, --duration here
load -k http://127.0.0.1:1                  = expected a flag that "myriad load --help" lists
hold -c 10 127.0.0.1:1                      = what -c is in wrk is -n, --connections here
serve --adr 127.0.0.1:0                     = unknown flag: --adr; did you mean --addr?
doctor --connection 5                       = did you mean --connections?
bench --round 1                             = did you mean --rounds?
plan -c 5                                   = what -c is in wrk is -n, --connections here
serve --nonsense                            = unknown flag: --nonsense; expected a flag that "myriad serve --help" lists
hub --processes 2                           = unknown flag: --processes; expected a flag that "myriad hub --help" lists
load --pipline 3 127.0.0.1:1                        = unknown flag: --pipline; did you mean --pipeline?
`

// TestUnknownFlags names the flag that was meant: the nearest, or the one that does what a
// short flag of wrk, hey or ab does.
func TestUnknownFlags(t *testing.T) {
	for text := range strings.Lines(unknownFlags) {
		line, says, found := strings.Cut(strings.TrimSpace(text), " = ")
		if !found {
			continue
		}
		if got := runLine(t, strings.TrimSpace(line)); got.code != 2 || !strings.HasPrefix(got.stderr, "myriad: unknown ") || !strings.Contains(got.stderr, says) {
			t.Errorf("myriad %s: exit code %d, stderr %q; want 2 and %q", line, got.code, got.stderr, says)
		}
	}
}
