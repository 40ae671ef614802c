package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/offer"
)

// offered is the result that the command has printed at last.
func offered(t *testing.T, stdout string) *offer.Result {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	l, err := offer.ParseLine([]byte(lines[len(lines)-1]))
	if err != nil || l.Result == nil {
		t.Fatalf("%q: %v, want a result", stdout, err)
	}
	return l.Result
}

func TestOffer(t *testing.T) {
	o := invoke(t, "offer", "--pool", "ours", "--work", "mixed", "--rate", "500", "--duration", "200ms", "--deadline", "1m",
		"--workers", "100", "--memory", "1000000000", "--off", "shedding", "--iterations", "1000")
	if o.code != 0 || o.stderr != "" {
		t.Fatalf("exit code %d, %s", o.code, o.stderr)
	}
	if r := offered(t, o.stdout); r.Offered != 100 || r.Finished != 100 || r.Good != 100 || r.Iterations != 1000 {
		t.Errorf("got %+v, want all of 100 jobs finished", r)
	}
}

// TestOfferInterrupted has it print its result when it is asked to end.
func TestOfferInterrupted(t *testing.T) {
	cmd := command(t, "offer", "--pool", "channel", "--rate", "100", "--duration", "1h")
	out := &lockedBuffer{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "a line of progress", func() bool { return strings.Contains(out.String(), `"progress"`) })
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if r := offered(t, out.String()); r.Finished == 0 || !strings.Contains(r.Overran, "terminated") {
		t.Errorf("got %+v, want a result that says so", r)
	}
}

func TestOfferWrongUse(t *testing.T) {
	for text, says := range map[string]string{
		"--pool ants":                   `--pool is "ants"; expected one of channel, naive, ours`,
		"--pool ours --rate -1":         "--rate is -1; expected 0 (a closed loop) to 100000000",
		"--pool ours --rate x":          `--rate is "x"; expected a value of type float64`,
		"--pool ours --off all":         `--off has "all"; expected some of adapting, newest, shedding`,
		"--pool ours --nonsense":        "nonsense",
		"--pool ours --work cpu extra":  `"extra"`,
		"--pool ours --duration 1":      "such as 1.5s",
		"--pool ours --deadline 1s -h1": "unknown",
	} {
		o := invoke(t, append([]string{"offer"}, strings.Fields(text)...)...)
		if o.code != 2 || !strings.Contains(o.stderr, says) || o.stdout != "" {
			t.Errorf("%s: exit code %d, %q, %q; want 2 and %q", text, o.code, o.stderr, o.stdout, says)
		}
	}
}
