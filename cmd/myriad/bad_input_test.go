package main

import (
	"os"
	"strings"
	"testing"
)

// What is wrong with a command line, or with a file that it names, ends a command with 2 and
// says what was expected, whichever command and flag it is. The cases are as they are typed,
// {x} being a file with no report, scenario, certificate or message in it, and {t} a target
// that refuses connections: what gets that far ends with 1.
func TestBadInput(t *testing.T) {
	x := t.TempDir() + "/x"
	if err := os.WriteFile(x, []byte("nothing of use\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const refused = "127.0.0.1:1"
	for line := range strings.Lines(`
		help frobnicate
		version x
		serve --addr 127.0.0.1:99999
		serve --addr 127.0.0.1
		serve --addr :::1
		serve --admin 127.0.0.1:99999
		serve --admin nonsense
		serve --addr 127.0.0.1:7 --admin 127.0.0.1:7
		serve --addr 127.0.0.1:7 --admin :7
		serve --addr :7 --admin localhost:7
		serve --tls-cert {x} --tls-key {x}
		serve --flight-lag 1s
		serve --flight-dir {d} --flight-lag -1s
		serve --flight-dir {d} --flight-lag 1h --addr 127.0.0.1:0
		serve --flight-dir {x} --addr 127.0.0.1:0
		serve --gogc -5
		serve --admin-control
		serve --admin 127.0.0.1:0 --admin-control --admin-token-file {no}
		serve --processes -1
		serve --processes 99999
		serve --loops 100000
		serve --heartbeat -1s
		serve --drain -1s
		load nonsense
		load 127.0.0.1
		load ::1
		load 127.0.0.1:99999
		load 127.0.0.1:http-but-not
		load 127.0.0.1:0
		load 127.0.0.1:-1
		load unix:
		load ftp://a:1/
		load http://
		load http://a:99999/
		load http://user@a:1/
		load tcp://a
		load tcp://a:1/path
		load http://a:1/x https://a:1/x
		load http://a:1/x http://a:1/y
		load --ws http://a:1/
		load --http ws://a:1/
		load --http tcp://a:1
		load --tls http://a:1/
		load --ws=/x ws://a:1/y
		load -m x http://a:1/y
		load --out {no}/x {t}
		load --html {no}/x {t}
		load --csv {no}/x {t}
		load --out {d}/a --html {d}/a {t}
		load --csv {d}/a --html {d}/a {t}
		load --metrics 127.0.0.1:99999 {t}
		load --metrics nonsense {t}
		load --expect p99 {t}
		load --expect x<5 {t}
		load -f {no} {t}
		load --template-file {no} {t}
		load --first-message-file {no} {t}
		load --tls --tls-ca {no} {t}
		load --tls --tls-ca {x} {t}
		load --match foo {t}
		load --src 10.0.0.0.1 {t}
		load --src ::1 {t}
		load --loops 100000 {t}
		load --latency-percentiles 101 {t}
		load -r @10ms,p101 {t}
		load --size 0 {t}
		load --pipeline 0 {t}
		load --ws=x {t}
		load --header x {t}
		load --ws --header :x {t}
		load --answer x --http {t}
		hold
		hold 127.0.0.1:99999
		hold http://a:1/
		hold --metrics nonsense {t}
		hold --expect foo {t}
		report {no}
		report {x}
		report {d}
		report --format foo {x}
		doctor x
		doctor --connections -1
		doctor --target nonsense
		doctor --watch --target 127.0.0.1:99999
		bench
		bench frob
		bench {no}.toml
		bench {x}.toml
		bench quick --rounds -1
		bench quick --duration -1s
		bench quick --only [
		bench quick --only nothing-matches-this
		bench quick --scale foo
		bench quick --subject x
		bench quick --with nothing
		bench quick --profile [
		bench quick --repeats -1
		bench quick --out x.json
		bench quick --out {x}
		bench --resume {no}
		bench list x
		bench show frob
		bench million --connections x
		bench overload --frob
		plain --addr 127.0.0.1:99999
		plain --admin nonsense
		plain --design frob
		plain x`) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		dir := t.TempDir()
		args := strings.Fields(strings.NewReplacer("{x}", x, "{no}", dir+"/none/none", "{d}", dir, "{t}", refused).Replace(line))
		got := invoke(t, args...)
		if got.code != 2 || !strings.HasPrefix(got.stderr, "myriad: ") {
			t.Errorf("myriad %s: exit code %d, stderr %q; want 2 and what is wrong", line, got.code, got.stderr)
		}
	}
}

// What fails without being called wrongly ends with 1.
func TestFailuresOfRuns(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	for line, says := range map[string]string{
		"load -c 1 127.0.0.1:1":                                "connection refused",
		"hold -n 1 127.0.0.1:1":                                "connection refused",
		"load -c 1 http://127.0.0.1:1/":                        "connection refused",
		"serve --addr " + s.addr:                               "another program listens on " + s.addr,
		"load -c 1 --messages 1 --expect answered>1 " + s.addr: "1 of 1 expectations not met",
	} {
		if got := invoke(t, strings.Fields(line)...); got.code != 1 || !strings.Contains(got.stderr, says) {
			t.Errorf("myriad %s: exit code %d, stderr %q; want 1 and %q", line, got.code, got.stderr, says)
		}
	}
}
