package procfs

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// statLine is /proc/PID/stat of a process of the given name.
func statLine(command string, user, system uint32) string {
	return fmt.Sprintf("4012 (%s) S 1 4000 2970 0 -1 4194304 99 0 0 0 %d %d 30 2 20 0 7 0 74345 3133440 379 18446744073709551615\n", command, user, system)
}

func TestParseStat(t *testing.T) {
	for _, command := range []string{"myriad", "a b", "a) S 1 2 (b", "))((", "", "new\nline"} {
		s, err := parseStat([]byte(statLine(command, 150, 25)))
		if err != nil {
			t.Fatalf("%q: %v", command, err)
		}
		want := Stat{PID: 4012, Parent: 1, Group: 4000, Command: command, User: 1500 * time.Millisecond, System: 250 * time.Millisecond, Waited: 320 * time.Millisecond, Threads: 7}
		if s != want {
			t.Errorf("%q: got %+v, want %+v", command, s, want)
		}
		if s.CPU() != 1750*time.Millisecond {
			t.Errorf("CPU: got %v", s.CPU())
		}
	}
}

// TestParseStatEnded tells a process that has ended from one whose first thread has.
func TestParseStatEnded(t *testing.T) {
	many := statLine("x) Z 1", 1, 2) // it has 7 threads
	one := strings.Replace(many, " 20 0 7 0 ", " 20 0 1 0 ", 1)
	for line, want := range map[string]bool{
		many: false,
		one:  false,
		strings.Replace(many, ") S 1", ") Z 1", 1): false,
		strings.Replace(one, ") S 1", ") Z 1", 1):  true,
	} {
		if s, err := parseStat([]byte(line)); err != nil || s.Ended != want {
			t.Errorf("%q: got %+v, %v; want ended: %v", line, s, err, want)
		}
	}
}

func TestParseStatRefuses(t *testing.T) {
	good := statLine("x", 1, 2)
	for name, in := range map[string]string{
		"empty":              "",
		"no parentheses":     "4012 x S 1 2 3",
		"wrong order":        ")(",
		"too few fields":     "4012 (x) S 1 4000",
		"pid not a number":   strings.Replace(good, "4012", "pid", 1),
		"negative ticks":     strings.Replace(good, " 0 0 0 1 2 ", " 0 0 0 -1 2 ", 1),
		"ticks overflow":     strings.Replace(good, " 0 0 0 1 2 ", " 0 0 0 9223372036854775807 2 ", 1),
		"negative of others": strings.Replace(good, " 30 2 ", " 30 -2 ", 1),
		"group not decimal":  strings.Replace(good, " 4000 ", " 0x40 ", 1),
	} {
		if s, err := parseStat([]byte(in)); err == nil {
			t.Errorf("%s: got %+v, want an error", name, s)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("myriad", uint32(1), uint32(2), []byte("4012 (x) S 1"))
	f.Add("a) (b", uint32(1<<31), uint32(0), []byte(")("))
	f.Fuzz(func(t *testing.T, command string, user, system uint32, raw []byte) {
		if s, err := parseStat(raw); err == nil && (s.User < 0 || s.System < 0) {
			t.Errorf("%q: negative time: %+v", raw, s)
		}
		s, err := parseStat([]byte(statLine(command, user, system)))
		if err != nil {
			t.Fatal(err)
		}
		if s.Command != command || s.User != time.Duration(user)*tick || s.System != time.Duration(system)*tick {
			t.Errorf("%q %d %d: got %+v", command, user, system, s)
		}
	})
}
