const fs = require("fs"), tls = require("tls");
const [host, port, cert] = process.argv.slice(2);
const sent = fs.readFileSync(0);
const c = tls.connect({host, port, ca: fs.readFileSync(cert), servername: "localhost"}, () => c.write(sent));
let got = 0;
c.on("data", (d) => { process.stdout.write(d); if ((got += d.length) >= sent.length) c.end(); });
