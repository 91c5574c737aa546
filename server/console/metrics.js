// Prometheus text, differences between two readings, and percentiles of histograms.

// "name{a="b"} 1" lines → Map name → [{labels, value}].
function parseMetrics(text) {
  const families = new Map();
  const line = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
  const label = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
  for (const row of text.split("\n")) {
    const found = row[0] === "#" ? null : line.exec(row);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] || "").matchAll(label)) {
      labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    const value = found[3] === "+Inf" ? Infinity : Number(found[3]);
    if (!families.has(found[1])) families.set(found[1], []);
    families.get(found[1]).push({ labels, value });
  }
  return families;
}

function matches(labels, wanted) {
  return Object.entries(wanted).every(([name, value]) => labels[name] === value);
}

// The sum of a family's series that have these labels; 0 without any.
function total(families, name, wanted = {}) {
  return (families.get(name) || []).reduce((sum, s) => sum + (matches(s.labels, wanted) ? s.value : 0), 0);
}

// The values a label has in a family, in their order.
function labelValues(families, name, label) {
  return [...new Set((families.get(name) || []).map((s) => s.labels[label]).filter((v) => v !== undefined))];
}

// What was added to a histogram between two readings: {count, sum, buckets: [[edge, count in it]]}.
function histogramBetween(before, after, name, wanted = {}) {
  const edges = new Map();
  for (const [families, sign] of [[after, 1], [before, -1]]) {
    for (const s of families.get(name + "_bucket") || []) {
      if (!matches(s.labels, wanted)) continue;
      const edge = s.labels.le === "+Inf" ? Infinity : Number(s.labels.le);
      edges.set(edge, (edges.get(edge) || 0) + sign * s.value);
    }
  }
  let running = 0;
  const buckets = [...edges].sort((a, b) => a[0] - b[0]).map(([edge, upTo]) => {
    const count = Math.max(0, upTo - running);
    running = Math.max(running, upTo);
    return [edge, count];
  });
  return {
    count: running,
    sum: total(after, name + "_sum", wanted) - total(before, name + "_sum", wanted),
    buckets,
  };
}

// The value below which `share` of what was counted lies, straight within a bucket; null when empty.
function quantile(histogram, share) {
  if (histogram.count <= 0) return null;
  let left = share * histogram.count;
  let low = 0;
  for (const [edge, count] of histogram.buckets) {
    if (count >= left && count > 0) return edge === Infinity ? low : low + (edge - low) * (left / count);
    left -= count;
    if (edge !== Infinity) low = edge;
  }
  return low;
}
