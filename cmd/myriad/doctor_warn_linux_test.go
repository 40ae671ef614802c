package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/faults"
)

// TestAsk hears what commands say of walls before they begin, in a network namespace
// that has a hundred ports and short queues.
func TestAsk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a network namespace takes root")
	}
	network, err := faults.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	for name, value := range map[string]string{"ipv4/ip_local_port_range": "40000 40099", "core/somaxconn": "16"} {
		err := network.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
		if err != nil {
			t.Fatal(err)
		}
	}
	const refused = "127.0.0.1:9" // nobody listens there
	const nowhere = "192.0.2.1:9" // which no machine has: TEST-NET-1
	from := []string{"--src", "127.0.0.1", "--connect-timeout", "1s", "--duration", "1ms", refused}
	for _, test := range []struct {
		name string
		args []string
		says []string // nothing if it is empty
	}{
		{"load, too many", append([]string{"load", "-c", "1000"}, from...), []string{"this machine stops at 100 connections of 1000: ports (", "`myriad doctor -n 1000 --side client --src 127.0.0.1` says how to move it"}},
		{"load, near", append([]string{"load", "-c", "90"}, from...), []string{"90 connections are 90% of what this machine holds, 100: ports ("}},
		{"load, far", append([]string{"load", "-c", "50"}, from...), nil},
		{"load, quiet", append([]string{"load", "-q", "-c", "1000"}, from...), nil},
		{"load, json", append([]string{"load", "--json", "-c", "1000"}, from...), []string{"stops at 100 connections"}},
		{"load, a hundred", from[2:], nil},
		{"hold, too many", append([]string{"hold", "-n", "1000"}, from...), []string{"this machine stops at 100 connections of 1000: ports ("}},
		{"serve, short queue", []string{"serve", "--max-conns", "1000", "--addr", nowhere}, []string{"somaxconn (16) hurts from 17 connections of 1000 on; `myriad doctor -n 1000 --side server` says"}},
		{"serve, few", []string{"serve", "--max-conns", "17", "--addr", nowhere}, nil},
		{"serve, processes", []string{"serve", "--max-conns", "1000", "--model", "epoll", "--processes", "2", "--addr", nowhere}, []string{"`myriad doctor -n 1000 --side server --model epoll --processes 2` says"}},
	} {
		args := test.args
		if args[0] != "load" && args[0] != "hold" && args[0] != "serve" {
			args = append([]string{"load"}, args...)
		}
		cmd := command(t, args...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := network.Do(func() error { return cmd.Start() }); err != nil {
			t.Fatal(err)
		}
		cmd.Wait() // with an error: nobody listens, or no such address
		var said []string
		for line := range strings.Lines(stderr.String()) {
			if strings.Contains(line, "myriad doctor") {
				said = append(said, line)
			}
		}
		if len(said) > 2 || (len(said) > 0) != (len(test.says) > 0) {
			t.Errorf("%s: it said %q; all of it:\n%s", test.name, said, stderr.String())
		}
		for _, text := range test.says {
			if !strings.Contains(strings.Join(said, ""), text) {
				t.Errorf("%s: it said %q, want %q", test.name, said, text)
			}
		}
		if strings.Contains(stdout.String(), "myriad doctor") {
			t.Errorf("%s: standard output has %q", test.name, stdout.String())
		}
	}
}
