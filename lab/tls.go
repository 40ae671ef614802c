package lab

import "time"

// TLSCosts asks what TLS costs on each of the I/O models that are given by name,
// beside crypto/tls on plain package net: throughput, and the memory of idle
// connections. The version is TLS 1.3, no session is resumed.
func TLSCosts(models []string) Scenario {
	s := Scenario{
		Name:     "tls",
		Question: "What does TLS cost on each I/O model, beside crypto/tls on plain package net?",
		Subjects: []Subject{{
			Name: "net", Command: withCertificate("{self}", "plain", "--addr", "{addr}", "--app", "{app}"),
		}},
		Workloads: tlsWorkloads(),
		Baseline:  "net",
		Rounds:    3,
	}
	for _, model := range models {
		s.Subjects = append(s.Subjects, Subject{Name: model, Command: withCertificate(serveCommand(model)...)})
	}
	return s
}

// withCertificate is a server's command line with TLS.
func withCertificate(command ...string) []string {
	return append(command, "--tls-cert", "{cert}", "--tls-key", "{key}")
}

func tlsWorkloads() []Workload {
	workloads := []Workload{
		{
			Name: "echo-100", Caption: "Echo of 64-byte messages over TLS on 100 connections, one in flight on each.",
			Kind: Throughput, Connections: 100, WarmUp: 500 * time.Millisecond, Duration: 2 * time.Second,
		},
		{
			Name: "echo-1000", Caption: "Echo of 64-byte messages over TLS on 1,000 connections, one in flight on each.",
			Kind: Throughput, Connections: 1000, WarmUp: 500 * time.Millisecond, Duration: 2 * time.Second,
		},
		{
			Name: "idle-1000", Caption: "1,000 connections that are silent when the handshake is over, then exchange one 64-byte message each, then are silent.",
			Kind: Idle, Connections: 1000, Hold: time.Second,
		},
		{
			Name: "idle-10000", Caption: "10,000 connections that are silent when the handshake is over, then exchange one 64-byte message each, then are silent.",
			Kind: Idle, Connections: 10000, Hold: 2 * time.Second,
		},
	}
	for i := range workloads {
		w := &workloads[i]
		w.App, w.Size, w.Pipeline, w.TLS = Echo, 64, 1, true
	}
	return workloads
}
