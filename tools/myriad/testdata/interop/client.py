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
