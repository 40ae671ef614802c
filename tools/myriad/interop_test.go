package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// writeCertificate writes a certificate for localhost and its key to files.
func writeCertificate(t *testing.T, changes ...func(*x509.Certificate)) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost", "there"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	for _, change := range changes {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	testkit.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.NoError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	testkit.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	testkit.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return cert, key
}

// Clients that print the answer to what they are given, of which the arguments are host, port and certificate.
const (
	pythonTLSClient = `
import socket, ssl, sys
host, port, cert = sys.argv[1:]
sent = sys.stdin.buffer.read()
with socket.create_connection((host, int(port))) as plain, ssl.create_default_context(cafile=cert).wrap_socket(plain, server_hostname="localhost") as c:
    c.sendall(sent)
    got = b""
    while len(got) < len(sent):
        part = c.recv(4096)
        if not part:
            break
        got += part
sys.stdout.buffer.write(got)
`
	nodeTLSClient = `
const fs = require("fs"), tls = require("tls");
const [host, port, cert] = process.argv.slice(2);
const sent = fs.readFileSync(0);
const c = tls.connect({host, port, ca: fs.readFileSync(cert), servername: "localhost"}, () => c.write(sent));
let got = 0;
c.on("data", (d) => { process.stdout.write(d); if ((got += d.length) >= sent.length) c.end(); });
`
	javaTLSClient = `
import java.io.*;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import javax.net.ssl.*;

class Client {
	public static void main(String[] args) throws Exception {
		KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
		trusted.load(null, null);
		try (InputStream cert = new FileInputStream(args[2])) {
			trusted.setCertificateEntry("server", CertificateFactory.getInstance("X.509").generateCertificate(cert));
		}
		TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
		managers.init(trusted);
		SSLContext context = SSLContext.getInstance("TLS");
		context.init(null, managers.getTrustManagers(), null);
		byte[] sent = System.in.readAllBytes();
		try (SSLSocket c = (SSLSocket) context.getSocketFactory().createSocket(args[0], Integer.parseInt(args[1]))) {
			SSLParameters parameters = c.getSSLParameters();
			parameters.setEndpointIdentificationAlgorithm("HTTPS");
			c.setSSLParameters(parameters);
			c.getOutputStream().write(sent);
			System.out.write(c.getInputStream().readNBytes(sent.length));
			System.out.flush();
		}
	}
}
`
	// opensslTimeClient prints OK if both new and resumed connections got answers.
	opensslTimeClient = `
openssl s_time -connect "$1:$2" -CAfile "$3" -www / -time 1 >"$3.time" 2>&1
grep -q rrr "$3.time" && [ "$(grep -c '^[1-9][0-9]* connections in .* bytes read [1-9]' "$3.time")" = 2 ] && echo OK || cat "$3.time"
`
)

// Programs that we did not write get their answers on every model. Those that take long do so with MYRIAD_TEST_FULL only.
func TestInterop(t *testing.T) {
	skipIfShort(t)
	const text, hello = "one\nand two\n", "Hello, World!Hello, World!Hello, World!"
	cert, key := writeCertificate(t)
	socket := filepath.Join(t.TempDir(), "socket")
	dir := t.TempDir()
	for name, program := range map[string]string{
		"client.py": pythonTLSClient, "client.js": nodeTLSClient, "Client.java": javaTLSClient, "s_time.sh": opensslTimeClient,
	} {
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(program), 0o600))
	}
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
				fill := strings.NewReplacer("{tls}", "--tls-cert "+cert+" --tls-key "+key, "{cert}", cert, "{dir}", dir, "{socket}", socket)
				s := serveLine(t, "serve --model "+model+" --app "+fill.Replace(c.serve))
				host, port, _ := net.SplitHostPort(s.addr)
				words := strings.Fields(strings.NewReplacer("{addr}", s.addr, "{host}", host, "{port}", port).Replace(fill.Replace(c.client)))
				cmd := exec.Command(words[0], words[1:]...)
				var stdout testkit.Buffer
				cmd.Stdout = &stdout
				in, err := cmd.StdinPipe()
				testkit.NoError(t, err)
				p := testkit.Start(t, cmd)
				_, err = io.WriteString(in, c.input)
				testkit.NoError(t, err)
				wantCode := 0
				if program == "openssl" { // it neither waits for the answer nor always ends when its input ends
					testkit.WaitFor(t, "the answer", func() bool { return len(stdout.String()) >= len(c.want) })
					p.Signal(syscall.SIGKILL)
					wantCode = -1
				}
				in.Close()
				if code := p.ExitCode(); code != wantCode || stdout.String() != c.want {
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
