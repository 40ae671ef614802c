package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// Programs that we did not write get their answers on every model. Those that take long do so with MYRIAD_TEST_FULL
// only. Those in testdata/interop print the answer to their input; their arguments are host, port and certificate.
func TestInterop(t *testing.T) {
	skipIfShort(t)
	const text, hello = "one\nand two\n", "Hello, World!Hello, World!Hello, World!"
	cert, key := testkit.WriteCertificate(t)
	socket := filepath.Join(t.TempDir(), "socket")
	long := strings.Repeat("a line of about forty characters or so\n", 5000) // many records
	openssl := "openssl s_client -connect {addr} -quiet -verify_return_error -CAfile {cert} -servername localhost -verify_hostname localhost -tls1_"
	type interopCase struct{ name, serve, client, input, want string }
	cases := []interopCase{
		{"openssl 1.2", "lines {tls}", openssl + "2", text, text},
		{"openssl 1.3", "lines {tls}", openssl + "3", text, text},
		{"socat, TLS", "lines {tls}", "socat -t5 - OPENSSL:{addr},cafile={cert},commonname=localhost", text, text},
		{"socat, unix", "lines --network unix --addr {socket}", "socat -t5 - UNIX-CONNECT:{socket}", text, text},
		{"nc", "lines", "nc -N {host} {port}", text, text},
		{"nc, a proxy", "lines --trusted-proxy 127.0.0.1", "nc -N {host} {port}", "PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n" + text, text},
		{"nc, none", "lines --trusted-proxy 127.0.0.1", "nc -N {host} {port}", text, ""},
		{"curl", "http", "curl -sS --fail http://{addr}/[1-3]", "", hello},
		{"python, TLS", "lines {tls}", "python3 {dir}/client.py {host} {port} {cert}", long, long},
		{"node, TLS", "lines {tls}", "node {dir}/client.js {host} {port} {cert}", long, long},
		{"curl, TLS", "http {tls}", "curl -sS --fail --cacert {cert} https://{addr}/[1-3]", "", hello},
	}
	if os.Getenv("MYRIAD_TEST_FULL") != "" {
		cases = append(cases, interopCase{"java, TLS", "lines {tls}", "java {dir}/Client.java {host} {port} {cert}", long, long},
			interopCase{"openssl s_time", "http {tls}", "sh {dir}/s_time.sh {host} {port} {cert}", "", "OK\n"})
	}
	for _, c := range cases {
		for _, model := range tcp.Models() {
			t.Run(model+"/"+c.name, func(t *testing.T) {
				program, _, _ := strings.Cut(c.client, " ")
				if _, err := exec.LookPath(program); err != nil {
					t.Skipf("%s is not installed: %v", program, err)
				}
				fill := strings.NewReplacer("{tls}", "--tls-cert "+cert+" --tls-key "+key, "{cert}", cert, "{dir}", "testdata/interop", "{socket}", socket)
				s := serveLine(t, "serve --model "+model+" --app "+fill.Replace(c.serve))
				host, port, _ := net.SplitHostPort(s.addr)
				words := strings.Fields(strings.NewReplacer("{addr}", s.addr, "{host}", host, "{port}", port).Replace(fill.Replace(c.client)))
				cmd := exec.Command(words[0], words[1:]...)
				var stdout testkit.Buffer
				cmd.Stdout = &stdout
				in, err := cmd.StdinPipe()
				testkit.RequireNoError(t, err)
				p := testkit.Start(t, cmd)
				_, err = io.WriteString(in, c.input)
				testkit.RequireNoError(t, err)
				wantCode := 0
				if program == "openssl" { // it neither waits for the answer nor always ends when its input ends
					testkit.WaitFor(t, "the answer", func() bool { return len(stdout.String()) >= len(c.want) })
					p.Signal(syscall.SIGKILL)
					wantCode = -1
				}
				in.Close()
				if code := p.WaitExitCode(); code != wantCode || stdout.String() != c.want {
					t.Errorf("exit code %d, it printed %q, want %q", code, stdout.String(), c.want)
				}
				s.checkStop(t)
				if _, err := os.Lstat(socket); !os.IsNotExist(err) {
					t.Errorf("the socket's file after the end: %v, want that it is removed", err)
				}
			})
		}
	}
}
