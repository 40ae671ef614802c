package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/await"
)

// At SIGUSR1 hold opens no more connections, and goes on with those that it has.
func TestHoldEnough(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	cmd := command(t, "hold", "-n", "5000", "--connect-rate", "50", "--duration", "100ms", "--json", s.addr)
	out, told := &lockedBuffer{}, &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, told
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the run begins", func() bool { return strings.Contains(out.String(), `"phase":"began"`) })
	if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v, %s", err, told)
	}
	for _, want := range []string{`"phase":"connected"`, `"phase":"measuring"`, `"connections":5000`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %s: %s", want, out)
		}
	}
	if strings.Contains(out.String(), "not established") {
		t.Errorf("what was not started has failed: %s", out)
	}
}
