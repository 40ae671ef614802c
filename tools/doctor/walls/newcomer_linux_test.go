package walls

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

// A new user on a machine that nobody has tuned types `myriad doctor -n 100000`, copies
// what it prints, and nothing else, and holds that number of connections.
func TestNewcomer(t *testing.T) {
	wanted := 100_000
	if testing.Short() {
		wanted /= 5
	}
	w := newTestNamespace(t)
	// A namespace as the kernel makes it: in the world's, loopback is up already.
	testkit.RequireNoError(t, w.callInNamespace(func() error { return unix.Unshare(unix.CLONE_NEWNET) }))
	ask := func(code int) (steps, commands []string) {
		doctor := w.startCommand("myriad", "doctor", "-n", strconv.Itoa(wanted))
		got := doctor.WaitExitCode()
		text := doctor.Output.String()
		t.Log(text)
		if got != code {
			t.Fatalf("the doctor: exit code %d, %s; want %d", got, doctor.stderr, code)
		}
		return linesBelow(text, "To raise them"), linesBelow(text, "in a shell of its own")
	}
	steps, commands := ask(1)
	if len(steps) == 0 || len(commands) != 2 {
		t.Fatalf("the doctor prints the steps %q and the commands %q; want some, and two", steps, commands)
	}
	fix := w.startScript(strings.Join(steps, "\n"), nil)
	if fix.WaitExitCode() != 0 {
		t.Fatalf("%q: exit code %d: %s", steps, fix.WaitExitCode(), fix.stderr)
	}
	if again, _ := ask(0); len(again) > 0 {
		t.Errorf("when that is done the doctor prints %q; want nothing more to do", again)
	}
	// The server is asked how many it has, which takes a flag that is not the user's.
	w.startScript("exec "+commands[0]+" --admin "+admin, nil).WaitForOutput("serving echo on")
	hold := w.startScript("exec "+commands[1], nil)
	testkit.WaitFor(t, "the server has them all", func() bool { return w.servedConns() == wanted })
	hold.WaitForOutput(fmt.Sprintf("held: %d connections", wanted))
}

// linesBelow is what is indented below the line that has a title.
func linesBelow(text, title string) (lines []string) {
	_, below, _ := strings.Cut(text, title)
	_, below, _ = strings.Cut(below, "\n")
	for line := range strings.Lines(below) {
		if !strings.HasPrefix(line, "  ") {
			break
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}
